// Package faultproxy stands in front of a TCP server for tests of what happens when the server, or the network to it, fails:
//
//	p := faultproxy.Start(t, server.Addr) // clients use p.Addr
//	p.Refuse()                            // nobody listens, and what was connected is cut
//	p.Swallow()                           // a black hole: connects, takes everything, never answers
//	p.Delay(500 * time.Millisecond)       // every answer takes so much longer
//	p.Forward(other.Addr)                 // a failover: what was connected is cut, new connections reach another server
//	p.Pass()                              // all is well again
//
// A connection that lost bytes to a black hole stays dead after it, as one does whose way through the network was forgotten: a pool full
// of such connections is what a client has to get rid of.
package faultproxy
