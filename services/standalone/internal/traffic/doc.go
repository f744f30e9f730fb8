// Package traffic drives a little of everything through the real HTTP APIs, so that whoever starts Tollgate sees it decide, meter and
// bill: one user of each tier, each with the habits that meet its tier's limits. What is sent is the same at every run (a fixed
// seed); how it is decided depends on the clock, as always.
package traffic
