// Package kept holds what stays the same from one run of standalone to the next: the tokens, the passwords and the ports, in a file
// of the data directory that only its owner can read. It also writes .tollgate/env, which tells a person's tools all of them.
package kept

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// State is kept between runs. Zero ports are chosen by the system and kept from then on.
type State struct {
	ServiceToken       string         `json:"service_token"`
	AdminToken         string         `json:"admin_token"`
	ViewerToken        string         `json:"viewer_token"`
	ClickHousePassword string         `json:"clickhouse_password"`
	FinancePassword    string         `json:"finance_password"`
	Ports              map[string]int `json:"ports"`
}

const fileName = "standalone.json"

// Load reads the state of the data directory and makes what is missing.
func Load(dir string) (*State, error) {
	s := &State{}
	b, err := os.ReadFile(filepath.Join(dir, fileName)) //nolint:gosec // the directory is the user's own
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read what the last run kept: %w", err)
	default:
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("read %s: %w; remove it to get new tokens", filepath.Join(dir, fileName), err)
		}
	}
	if s.Ports == nil {
		s.Ports = map[string]int{}
	}
	for _, f := range []struct {
		to     *string
		prefix string
	}{{&s.ServiceToken, "svc_"}, {&s.AdminToken, "adm_"}, {&s.ViewerToken, "view_"}, {&s.ClickHousePassword, ""}, {&s.FinancePassword, ""}} {
		if *f.to == "" {
			*f.to = f.prefix + secret()
		}
	}
	return s, nil
}

// Save writes the state.
func (s *State) Save(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what to keep: %w", err)
	}
	return WriteFile(filepath.Join(dir, fileName), append(b, '\n'))
}

// secret makes 160 random bits as letters and digits, which need no quotes in a shell or a URL.
func secret() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// WriteFile replaces a file at once, so that a reader sees the old or the new one whole. Only its owner can read it.
func WriteFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // what matters is the cause
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
