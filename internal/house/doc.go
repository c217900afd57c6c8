// Package house holds the rules of the repository as tests. It has no code of its own for others to import.
//
// A rule is a test, and what it cannot demand everywhere stands in a list beside it; lines of files and their width
// ([TestSizes]) need none:
//
//   - imports.txt says for each folder what it holds and which packages of the module it may import. The table of
//     folders in docs/architecture.md is written from it.
//   - methods.txt names the types that have more methods than a reader keeps in mind. Its numbers only go down.
//
// Run them with
//
//	go test ./internal/house
//
// After folders or files were moved, write the lists and the table anew and look at what changed:
//
//	go test ./internal/house -update
//
// That adds rows for new folders, with the imports that they have now, and drops what is gone. It neither gives a
// folder that has a row a further import nor lets the numbers grow. With -accept beside it, it does both, and the
// review sees what was accepted.
package house
