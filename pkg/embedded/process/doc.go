// Package process starts the servers that run as children of a Tollgate process: the embedded stores under `make run`
// and the real ones under test.
//
// A child never outlives its parent. On Linux the kernel signals it when the thread that started it ends (Pdeathsig), so
// Start keeps that thread until the child has exited; a parent that is killed with SIGKILL takes its children along. Other
// systems have no such signal: there a child ends by the closed standard input, if it looks at it, and else stays.
//
// A directory belongs to one server at a time. Lock takes a file lock on it; the child inherits the open file, so the lock
// is held until the last process that uses the directory is gone, whatever happened to the parent.
package process
