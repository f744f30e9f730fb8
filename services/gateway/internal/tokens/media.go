package tokens

import (
	"encoding/base64"
	"image"
	_ "image/gif"  // its size
	_ "image/jpeg" // its size
	_ "image/png"  // its size
	"strings"
)

// What is not text, in tokens.
const (
	imageBase = 85
	imageTile = 170
	// imageDefault is an image of 1,024 × 1,024.
	imageDefault = imageBase + 4*imageTile
	fileByID     = 2000
)

const (
	mostSized   = 64        // images whose size is read
	sizedPrefix = 128 << 10 // of their base64 that is looked at: JPEG may have much before its size
)

// image counts an image_url: a string, or an object of url and detail.
func (p *prompt) image(v value) error {
	url, low := "", false
	err := v.stringMembers(func(name, s string) {
		switch name {
		case "detail":
			low = s == "low"
		default: // url; of an image that comes as a string, the string
			url = s
		}
	})
	if err != nil {
		return err
	}
	if low {
		p.fixed += imageBase
		return nil
	}
	if data, ok := blob(url); ok && p.images < mostSized {
		p.images++
		if cfg, _, err := image.DecodeConfig(base64.NewDecoder(base64.StdEncoding, strings.NewReader(data[:min(len(data), sizedPrefix)]))); err == nil {
			p.fixed += imageTokens(cfg.Width, cfg.Height)
			return nil
		}
	}
	p.fixed += imageDefault
	return nil
}

// imageTokens is OpenAI's rule for detail high.
func imageTokens(width, height int) int64 {
	w, h := float64(max(1, width)), float64(max(1, height))
	if most := max(w, h); most > 2048 {
		w, h = w*2048/most, h*2048/most
	}
	if least := min(w, h); least > 768 {
		w, h = w*768/least, h*768/least
	}
	tiles := func(v float64) int64 { return (max(1, int64(v+0.5)) + 511) / 512 }
	return imageBase + imageTile*tiles(w)*tiles(h)
}

// audio counts input_audio: base64 and its format.
func (p *prompt) audio(v value) error {
	size, format := int64(0), ""
	err := v.stringMembers(func(name, s string) {
		switch name {
		case "format":
			format = s
		default:
			size += decoded(s)
		}
	})
	per := int64(400)
	if format == "wav" || strings.HasPrefix(format, "pcm") {
		per = 3200
	}
	p.fixed += (size + per - 1) / per
	return err
}

// file counts a file: base64, or an id of one that the server has.
func (p *prompt) file(v value) error {
	return v.stringMembers(func(name, s string) {
		switch name {
		case "file_id":
			p.fixed += fileByID
		case "file_data":
			p.blob(s)
		default:
			p.textOrBlob(s)
		}
	})
}

// blob counts base64, or a data URL.
func (p *prompt) blob(s string) {
	p.fixed += (decoded(s) + 15) / 16
}

func (p *prompt) textOrBlob(s string) {
	if _, ok := blob(s); ok {
		p.blob(s)
		return
	}
	p.text(s)
}

// decoded is how many bytes some base64, or a data URL, stands for.
func decoded(s string) int64 {
	if data, ok := blob(s); ok {
		s = data
	}
	return int64(base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(s, "="))))
}

// stringMembers calls f with the strings of an object by their names, or with a string that stands for it, by no name.
func (v value) stringMembers(f func(name, s string)) error {
	switch v.kind {
	case '"':
		f("", v.unquote())
	case '{':
		return v.members(func(m value) error {
			if m.kind == '"' {
				f(m.field, m.unquote())
			}
			return nil
		})
	}
	return nil
}
