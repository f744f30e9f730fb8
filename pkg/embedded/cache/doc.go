// Package cache keeps downloaded servers in the user's cache directory, shared by all clones and by processes that ask at the
// same time. A download is made beside its place and renamed into it, under a file lock: an interrupted one leaves nothing
// that looks complete. A person who waits sees once a second that it goes on.
package cache
