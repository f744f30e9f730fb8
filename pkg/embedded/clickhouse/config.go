package clickhouse

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// The users of an embedded server, and the database that it always has.
const (
	AppUser     = "tollgate"
	FinanceUser = "finance"
	Database    = "tollgate"
)

//go:embed config.xml.tmpl users.xml.tmpl boot.sql.tmpl
var templateFiles embed.FS

type templateData struct {
	AppUser, AppHash, FinanceUser, FinanceHash, Database string
	MaxMemory                                            int64
	QueryLog                                             bool
}

// render fills one of the embedded templates.
func render(name string, data templateData) ([]byte, error) {
	t, err := template.New(name).Funcs(template.FuncMap{"xml": escapeXML}).ParseFS(templateFiles, name)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("fill %s: %w", name, err)
	}
	return b.Bytes(), nil
}

// writeConfig writes config.xml and users.xml into dir and returns the path of the first.
func writeConfig(dir string, data templateData) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the configuration directory: %w", err)
	}
	for _, name := range []string{"config.xml", "users.xml"} {
		b, err := render(name+".tmpl", data)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return "", fmt.Errorf("write the configuration: %w", err)
		}
	}
	return filepath.Join(dir, "config.xml"), nil
}

func escapeXML(s string) (string, error) {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		return "", fmt.Errorf("escape %q: %w", s, err)
	}
	return b.String(), nil
}

func hash(password string) string {
	sum := sha256.Sum256([]byte(password))
	return hex.EncodeToString(sum[:])
}

// randomPassword has 128 bits, as hex digits.
func randomPassword() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
