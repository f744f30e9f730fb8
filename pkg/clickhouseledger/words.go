package clickhouseledger

import (
	"fmt"

	"github.com/ClickHouse/ch-go/proto"
)

// words is a column of LowCardinality(String). ch-go has one, which looks every value up in a map when the block is sent; that was a
// third of the time to encode a block here, although nearly every value is the one before it.
type words struct {
	proto.ColLowCardinalityRaw
	texts  *proto.ColStr
	places map[string]uint32
	keys   []uint32 // places in texts
	last   string
}

func newWords() *words {
	texts := new(proto.ColStr)
	return &words{ColLowCardinalityRaw: proto.ColLowCardinalityRaw{Index: texts}, texts: texts, places: map[string]uint32{}}
}

func (w *words) Append(v string) {
	if n := len(w.keys); n > 0 && v == w.last {
		w.keys = append(w.keys, w.keys[n-1])
		return
	}
	at, ok := w.places[v]
	if !ok {
		at = uint32(w.texts.Rows())
		w.places[v] = at
		w.texts.Append(v)
	}
	w.keys, w.last = append(w.keys, at), v
}

// AppendEmpty appends n times "".
func (w *words) AppendEmpty(n int) {
	if n == 0 {
		return
	}
	w.Append("")
	at := w.keys[len(w.keys)-1]
	for range n - 1 {
		w.keys = append(w.keys, at)
	}
}

func (w *words) Row(i int) string { return w.texts.Row(int(w.keys[i])) }

func (w *words) Rows() int { return len(w.keys) }

// Prepare implements proto.Preparable: the keys are sent in the least width.
func (w *words) Prepare() error {
	w.Keys8, w.Keys16, w.Keys32 = w.Keys8[:0], w.Keys16[:0], w.Keys32[:0]
	switch n := w.texts.Rows(); {
	case n <= 1<<8:
		w.Key = proto.KeyUInt8
		for _, k := range w.keys {
			w.Keys8 = append(w.Keys8, uint8(k))
		}
	case n <= 1<<16:
		w.Key = proto.KeyUInt16
		for _, k := range w.keys {
			w.Keys16 = append(w.Keys16, uint16(k))
		}
	default:
		w.Key = proto.KeyUInt32
		w.Keys32 = append(w.Keys32, w.keys...)
	}
	return nil
}

// DecodeColumn implements proto.ColResult.
func (w *words) DecodeColumn(r *proto.Reader, rows int) error {
	if err := w.ColLowCardinalityRaw.DecodeColumn(r, rows); err != nil {
		return err
	}
	w.keys = w.keys[:0]
	for i := range rows {
		switch w.Key {
		case proto.KeyUInt8:
			w.keys = append(w.keys, uint32(w.Keys8[i]))
		case proto.KeyUInt16:
			w.keys = append(w.keys, uint32(w.Keys16[i]))
		case proto.KeyUInt32:
			w.keys = append(w.keys, w.Keys32[i])
		default:
			return fmt.Errorf("keys of kind %d are not known", w.Key)
		}
	}
	return nil
}

// Reset implements proto.Resettable.
func (w *words) Reset() {
	w.ColLowCardinalityRaw.Reset()
	clear(w.places)
	w.keys, w.last = w.keys[:0], ""
}
