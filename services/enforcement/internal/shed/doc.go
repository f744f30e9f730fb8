// Package shed is the DECISION under load: which requests are refused, and which are served a smaller model, before any counter is asked. It
// is pure: a function of the load that was reported, the priority that was sold, the request's id, and the time.
//
// # Who is shed
//
// A tier sheds a share of its requests that grows from 0 to 1 over Ramp of load, from where its priority says (Begin): free (20) from 0.80, plus
// (60) from 0.85, api (80) from 0.90, enterprise (100) never. A priority between two of these begins between them, in proportion, so tiers
// that admins add have their place in the order. So at every load a higher priority sheds no more than a lower one.
//
// Which requests make up the share is decided by the request's id alone (Draw): a request is shed where its draw lies below the share. So
// every instance says the same; a repeat of a request is no lottery; and what is shed at one load, or at one priority, is shed at every higher
// load, and at every lower priority. Ids are the inference service's, never its clients': nobody can pick a lucky one.
//
// # Fallback
//
// From FallbackFrom on, priorities below FallbackBelow (free) that ask for a large model are served the small one, if their plan allows it. From
// then on the small model's load, price and limits count.
//
// # Hysteresis
//
// What counts is not the load as it was reported last but the level (Report.Next, Report.At): it rises with the load at once, falls no
// closer than Band above the load, and all the way once the load has not reached it for Hold. So a load that swings by less than Band does not
// admit and shed by turns. A report that has not been renewed within its time to live counts no more: nobody is shed by a reporter that has
// died.
package shed
