// Package realkafka starts a real Apache Kafka (4.x, KRaft, one node) for tests of events, on free loopback ports, with data in
// a temporary directory. It dies with the test process.
//
// A start takes some seconds, so a package shares one server:
//
//	func TestMain(m *testing.M) { realkafka.Main(m) }          // or stores.Main(m, realkafka.StopShared)
//	func TestX(t *testing.T)    { s := realkafka.Shared(t); topic := s.FreshTopic(t, 3) }
//
// A test that kills or pauses it starts its own (Start).
//
// Needed: Java 17 or newer and Maven, which fetches Kafka (pom.xml) into the cache, once, with progress. Without them the test
// fails and says what to install; it is never skipped.
package realkafka
