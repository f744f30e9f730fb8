// Package postgres runs a real PostgreSQL server, for what was sold (quotas, keys, tiers), as a child process: on loopback, no
// unix socket, data in a directory, a random password beside the data (mode 0600).
//
// PostgreSQL refuses to run as root. Started by root, it runs as the user `postgres` or else `nobody`, who then owns the
// directory. That user may not be able to enter the directories above (a clone or a cache under a home of mode 0700): then,
// and only then, the server keeps one capability, to pass and read them (CAP_DAC_READ_SEARCH, or CAP_DAC_OVERRIDE where a
// container has only that). For this the child is the caller's own executable, started again: MaybeRunChild must be the
// first call in main and in TestMain; Start as root refuses to work without it.
//
// When it fails: a child that dies closes Done, and clients get connection errors; whoever started it decides whether to start
// another. Committed transactions survive SIGKILL of the server and of the parent, and, unless Options.Unsafe is set, a power
// cut. The server never outlives its parent (Linux), and a directory has one server at a time.
package postgres
