package cuda

// TextFlusher is implemented by a GPU that may keep text of kernels (printf, assert) in a buffer of the process.
type TextFlusher interface {
	// FlushText writes it to the process's standard output and error.
	FlushText()
}
