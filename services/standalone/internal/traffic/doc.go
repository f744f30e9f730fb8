// Package traffic sends a little of everything through the gateway, as any OpenAI client would, so that whoever starts Tollgate sees it decide, meter
// and bill: a new customer, one request at a time (Story), then one user of each tier, each with the habits that meet its tier's limits (Run). What
// the tiers' users send is the same at every run (a fixed seed); how it is decided depends on the clock, as always.
//
// The gateway's upstream has to be the simulated inference server (pkg/testkit/upstream), scripted: how long its answers are is said in x_sim.
package traffic
