// Package realredis starts real redis-server processes for tests of decisions: one (Start) or a cluster of three
// (StartCluster), on free loopback ports, with data in the test's temporary directory. They die with the test process.
//
// redis-server 7 or newer is taken from PATH. If it is absent and the tests run as root on Debian or a relative, it is
// installed by apt-get, once, without starting the system's service. Else the test fails and says what to install; it is
// never skipped.
package realredis
