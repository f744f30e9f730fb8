package redisbucket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// What bucket.lua tells of the form of states, in Go.

// epoch is when packed times begin, in ms.
const (
	epoch = 1_577_836_800_000
)

// entry is one limit as a state has it.
type entry struct {
	id       string
	window   int64 // ms
	capacity int64
	limit.Bucket
}

// lease is how many leases end at a second.
type lease struct{ till, count int64 }

var counted = [...]string{limit.Requests: "R", limit.Tokens: "T", limit.InputTokens: "I", limit.OutputTokens: "O"}

var spans = map[int64]string{1000: "S", 60_000: "M", 3_600_000: "H", 86_400_000: "D"}

// appendID writes a limit as a signature names it.
func appendID(b []byte, c string, window, capacity int64) []byte {
	b = append(b, c...)
	span, short := spans[window]
	if !short {
		span = "X"
	}
	b = strconv.AppendInt(append(b, span...), capacity, 36)
	if !short {
		b = strconv.AppendInt(append(b, ':'), window, 36)
	}
	return b
}

// creditBytes is how wide a credit is, which is less than the window.
func creditBytes(window int64) int {
	switch {
	case window <= 1<<16:
		return 2
	case window <= 1<<32:
		return 4
	}
	return 6
}

// signature begins every packed state of these limits.
func signature(limits []limit.Limit) string {
	b := make([]byte, 0, 8*len(limits)+1)
	for _, l := range limits {
		b = appendID(b, counted[l.Counted], l.Window.Milliseconds(), l.Capacity)
	}
	return string(append(b, '!'))
}

// appendLimits adds what every script takes of a scope's limits: their number, the signature, the format of a packed state, and the numbers, of which
// the third of each limit is the script's.
func appendLimits(args []any, limits []limit.Limit, third func(j int) int64) []any {
	format, numbers := make([]byte, 0, 3+4*len(limits)), make([]byte, 0, 20*max(3, len(limits)))
	format = append(format, ">I5"...)
	for j, l := range limits {
		window := l.Window.Milliseconds()
		format = append(format, 'I', '4', 'I', '0'+byte(creditBytes(window)))
		numbers = appendTriple(numbers, l.Capacity, window, third(j))
	}
	for range 3 - len(limits) {
		numbers = appendTriple(numbers, 1, 1, 0)
	}
	return append(args, len(limits), signature(limits), string(format), string(numbers))
}

func appendTriple(b []byte, capacity, window, third int64) []byte {
	b = appendBytes(b, capacity, 7)
	b = appendBytes(b, window, 6)
	return appendBytes(b, third, 7)
}

func appendBytes(b []byte, v int64, width int) []byte {
	var all [8]byte
	binary.BigEndian.PutUint64(all[:], uint64(v)) //nolint:gosec // two's complement is the form
	return append(b, all[8-width:]...)
}

func bytesOf(b string, width int) int64 {
	var v int64
	for i := range width {
		v = v<<8 | int64(b[i])
	}
	return v
}

// parseState reads a state of any form, its leases included. at is the time of its buckets, 0 if it has none.
func parseState(state string) (at int64, entries []entry, leases []lease, err error) {
	end := strings.IndexAny(state, "!|;")
	if end < 0 {
		if state == "" {
			return 0, nil, nil, nil
		}
		return 0, nil, nil, fmt.Errorf("%q is no state", state)
	}
	if entries, err = parseSignature(state[:end]); err != nil {
		return 0, nil, nil, err
	}
	if state[end] == '!' {
		at, leases, err = parsePacked(state[end+1:], entries)
		return at, entries, leases, err
	}
	head, ends, _ := strings.Cut(state, ";")
	for _, l := range strings.FieldsFunc(ends, func(r rune) bool { return r == ',' }) {
		var e lease
		if _, err := fmt.Sscanf(l, "%d:%d", &e.till, &e.count); err != nil {
			return 0, nil, nil, fmt.Errorf("leases %q: %w", ends, err)
		}
		leases = append(leases, e)
	}
	if head != "" {
		at, err = parseText(head[end+1:], entries)
	}
	return at, entries, leases, err
}

func parseSignature(sig string) ([]entry, error) {
	entries := make([]entry, 0, 3)
	for sig != "" {
		end := 2
		for end < len(sig) && (sig[end] < 'A' || sig[end] > 'Z') {
			end++
		}
		capacity, window, explicit := strings.Cut(sig[min(2, len(sig)):end], ":")
		e, span := entry{id: sig[:min(2, len(sig))] + window}, ""
		if len(sig) > 1 {
			span = sig[1:2]
		}
		var err1, err2 error
		e.capacity, err1 = strconv.ParseInt(capacity, 36, 64)
		if explicit {
			e.window, err2 = strconv.ParseInt(window, 36, 64)
		} else {
			for ms, name := range spans {
				if name == span {
					e.window = ms
				}
			}
		}
		if err := errors.Join(err1, err2); err != nil || e.window == 0 {
			return nil, fmt.Errorf("signature %q: %w", sig, err)
		}
		entries, sig = append(entries, e), sig[end:]
	}
	return entries, nil
}

func parsePacked(b string, entries []entry) (at int64, leases []lease, err error) {
	size := 5
	for _, e := range entries {
		size += 4 + creditBytes(e.window)
	}
	if len(b) < size || (len(b)-size)%8 != 0 {
		return 0, nil, fmt.Errorf("a packed state has %d bytes, of which %d should be its buckets", len(b), size)
	}
	at, b = bytesOf(b, 5)+epoch, b[5:]
	for i := range entries {
		e := &entries[i]
		width := creditBytes(e.window)
		e.Consumed, e.Credit, b = bytesOf(b, 4), bytesOf(b[4:], width), b[4+width:]
	}
	for ; b != ""; b = b[8:] {
		leases = append(leases, lease{bytesOf(b, 4), bytesOf(b[4:], 4)})
	}
	return at, leases, nil
}

func parseText(text string, entries []entry) (at int64, err error) {
	numberText, fastText, _ := strings.Cut(text, "|")
	n, err := numbers(strings.Fields(numberText))
	if err != nil {
		return 0, err
	}
	fasts, err := numbers(strings.Fields(fastText))
	if err != nil || len(n) < 1+2*len(entries) || len(fasts) > 0 && len(fasts) < len(entries) {
		return 0, fmt.Errorf("%q has too few numbers: %w", text, err)
	}
	for i := range entries {
		entries[i].Consumed, entries[i].Credit = n[1+2*i], n[2+2*i]
		if len(fasts) > 0 {
			entries[i].Fast = fasts[i]
		}
	}
	return n[0], nil
}

// stateText writes a state in the form that any number fits in. Empty buckets and no leases: "".
func stateText(at int64, entries []entry, leases []lease) string {
	var b []byte
	fast := false
	for _, e := range entries {
		b = appendID(b, e.id[:1], e.window, e.capacity)
		fast = fast || e.Fast > 0
	}
	if len(entries) > 0 {
		b = strconv.AppendInt(append(b, '|'), at, 10)
		for _, e := range entries {
			b = fmt.Appendf(b, " %d %d", e.Consumed, e.Credit)
		}
	}
	if fast {
		b = append(b, '|')
		for _, e := range entries {
			b = fmt.Appendf(b, "%d ", e.Fast)
		}
	}
	for i, l := range leases {
		b = fmt.Appendf(b, "%c%d:%d", ";,"[min(i, 1)], l.till, l.count)
	}
	return string(b)
}

// observed tells of the given limits, which come first in the state that a script answers.
func observed(s limit.Scope, now, open int64, state string) (limit.Observed, error) {
	out := limit.Observed{InUse: open}
	if len(s.Limits) == 0 {
		return out, nil
	}
	at, entries, _, err := parseState(state)
	if err == nil && len(entries) < len(s.Limits) {
		err = errors.New("it has too few limits")
	}
	if err != nil {
		return out, fmt.Errorf("state of scope %s: %w", s.Name, err)
	}
	out.LagMillis, out.Buckets = max(0, at-now), make([]limit.Bucket, len(s.Limits))
	for i := range out.Buckets {
		out.Buckets[i] = entries[i].Bucket
	}
	return out, nil
}
