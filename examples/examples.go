// Package examples holds what `scuda demo` needs of gpt/: the small GPT by PyTorch, and the story that it reads. The
// same as a program with kernels of its own, gpt.c, is built into scuda-demo.
package examples

import _ "embed"

// GPT is the program by PyTorch, and Story what it reads from its standard input.
var (
	//go:embed gpt/gpt.py
	GPT string
	//go:embed gpt/story.txt
	Story string
)
