// Package clickhouse runs a real ClickHouse server, for the ledger, as a child process: native protocol and HTTP on loopback,
// data in a directory. Clients are the same as in production.
//
// The server is ClickHouse's shared library, as published for npm (package npmstore). The child is the caller's own
// executable, started again: MaybeRunChild must therefore be the first call in main and in TestMain; Start refuses to work
// without it.
//
// What the library needs, each found by trial and guarded by a test here:
//
//   - It is ClickHouse's local tool told to listen. Without a terminal as standard input it ends at the first bad login or
//     broken request; with a pseudo-terminal it survives them. The end of that terminal stops it.
//   - The tool's own user, `default`, has no password and cannot get one. It may have one session, and the tool holds it, so
//     nobody else can log in as `default`.
//   - Users come from the configuration that Start writes; CREATE USER fails. There are two: AppUser, which may do anything,
//     and FinanceUser, which may read Database and nothing else.
//   - Without an explicit configuration file it would pick up one that lies around in the working directory or in /etc.
//   - The local tool reads any file for any user, by the scalar function file(): no grant, setting or user_files_path keeps it from that. So the child
//     is confined (Landlock, Linux 5.19 or later) to reading its own directory, libraries and what tells of the system, and gets no secrets in its environment.
//     Elsewhere the child says in its log that it is not, and FinanceUser can read every file that the parent's user can.
//   - An orderly end waits for open connections, and for up to 10 seconds after the last: Close does not wait that long.
//
// When it fails: a child that dies closes Done, and clients get connection errors; whoever started it decides whether to start
// another. What was acknowledged survives SIGKILL of the child and of the parent; the child never outlives the parent. It does
// not survive a power cut beyond what ClickHouse's default fsync settings promise.
package clickhouse
