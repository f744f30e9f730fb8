// Package quotacache holds what was sold close to the DECISION: up to 100,000 plans for at most redisfence.CacheTTL each.
//
// A plan is never older than its time to live, counted from before it was asked for. It is dropped when a change of anything that it depends
// on is announced: the key, the user who owns it, their tier, their org. Everything is dropped when announcements may have been missed. A load
// that began before a drop may bring the old plan: whoever waits for it may have it (the decision is fenced by version, so an old one is refused
// and Reload is called), but it is not kept.
//
// When Postgres is away: what is cached is used until its time ends; everyone else gets the loader's error, at once or after
// LoadTimeout. Errors are not cached. When the announcements are away: the fence in Redis still refuses old plans. When this process
// dies: nothing is lost.
package quotacache
