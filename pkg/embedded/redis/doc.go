// Package redis runs a Redis server in this process, for decisions: miniredis, on loopback, in memory.
//
// What it lacks beside Redis, as of the pinned version:
//
//   - It forgets everything at a stop; buckets are restored from the ledger.
//   - Its Lua is gopher-lua (Lua 5.1): no struct, cmsgpack or bit library; redis.call and cjson are there. Numbers are floats
//     as in Redis; scripts must pass the suites on a real Redis (testkit/realredis) too.
//   - One lock serves all clients: about 4,000 script calls a second.
//   - Keys expire on a clock that Start moves along every 50 ms: up to that much late.
//   - No persistence, replication, cluster, memory limit or eviction; INFO and CONFIG say little; no MEMORY, LATENCY, SLOWLOG.
package redis
