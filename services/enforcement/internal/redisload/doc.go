// Package redisload keeps the reported load in Redis, so that every instance sheds alike. It serves the DECISION stage; the rules are package
// shed's.
//
// The key is tg:load, a hash: a group of models ("*" is all), and its report as "<load> <level> <reached> <until>", times in ms by Redis's own
// clock. The key expires with the last report. A report is read, the next one computed here, and written by put.lua if nobody else has
// written meanwhile; else it is done again. So a report is the last one that was written, whoever wrote it: a group has one reporter.
//
// No check asks Redis: each instance reads the key every Every, and a check uses what was read last. A report that one instance has answered is
// known to it at once, and to every other within Every and one round trip, MaxAge at most while Redis answers.
//
// When Redis is away, Put fails and changes nothing; what was read last counts until its time to live is over. The tollgate_load gauges tell what
// counts. When Redis has lost its data nobody is shed, until the next report.
package redisload
