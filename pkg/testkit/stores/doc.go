// Package stores gives tests the embedded stores, one call each:
//
//	func TestMain(m *testing.M) { stores.Main(m) }
//
//	func TestX(t *testing.T) {
//		dsn := stores.Postgres(t)       // a fresh database
//		ch := stores.ClickHouse(t)      // a fresh database
//		k := stores.Kafka(t, topics...) // a fresh broker
//		r := stores.Redis(t)            // a fresh server
//	}
//
// PostgreSQL and ClickHouse run once for a test binary, from the first test that asks until Main ends, with data in a temporary
// directory and without fsync where that can be had; each call makes a database and drops it with the test. Kafka and Redis
// are in process and cheap, so each call makes its own. Real ones are in realredis and realkafka. A store that cannot be had
// fails the test; nothing is ever skipped.
//
// A test that kills a server, or needs the database to be called tollgate, starts its own with package embedded, after Main
// has been set up.
package stores
