// Package crash lets a test kill a process with SIGKILL and see what is left: the test binary itself, started again to run the
// same test as the victim.
package crash
