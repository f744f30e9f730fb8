// Package redisinstances counts the live instances of enforcement in Redis, so that each knows its share of every capacity when Redis is
// away, and where the others can be asked then (package fallback). It serves the DECISION stage.
//
// The key is tg:instances, a sorted set: until when each instance is believed alive, by Redis's own clock. A beat is a script call that
// writes, so one that succeeds also tells that Redis takes decisions again.
//
// When Redis is away: Beat returns an error, and the last count is the caller's to keep. When Redis has lost its data, or all instances were
// silent, the count begins at one and is right once every instance has beaten. An instance that dies is counted for another Alive.
package redisinstances
