// Package roomstest holds the C front's folders to their order: what lies in a room may name what lies in the rooms
// below it, and nothing above.
package roomstest
