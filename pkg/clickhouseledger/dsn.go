package clickhouseledger

import (
	"database/sql"
	"errors"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/clickhouse-go/v2"
)

const (
	dialTimeout = 5 * time.Second
	readTimeout = 60 * time.Second
)

// Options reads a native DSN, clickhouse://user:password@host:9000/tollgate. The error names no password.
func Options(dsn string) (*clickhouse.Options, error) {
	o, err := clickhouse.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("is not a ClickHouse DSN, such as clickhouse://user:password@host:9000/tollgate")
	}
	if o.Protocol != clickhouse.Native {
		return nil, errors.New("must use the native protocol: clickhouse://…, not http://…")
	}
	if o.Auth.Database == "" {
		return nil, errors.New("must name the database, as in clickhouse://host:9000/tollgate")
	}
	o.DialTimeout, o.ReadTimeout = dialTimeout, readTimeout
	if o.Compression == nil {
		o.Compression = &clickhouse.Compression{Method: clickhouse.CompressionLZ4}
	}
	return o, nil
}

// OpenSQL makes a database/sql pool, for the migrations and for reading. Nothing is dialled yet.
func OpenSQL(dsn string) (*sql.DB, error) {
	o, err := Options(dsn)
	if err != nil {
		return nil, err
	}
	return clickhouse.OpenDB(o), nil
}

// columnar are the same settings for the client that speaks in columns.
func columnar(o *clickhouse.Options, addr string) ch.Options {
	c := ch.Options{Address: addr, Database: o.Auth.Database, User: o.Auth.Username, Password: o.Auth.Password, TLS: o.TLS,
		DialTimeout: dialTimeout, HandshakeTimeout: dialTimeout, ReadTimeout: readTimeout, ClientName: "tollgate ledger"}
	switch o.Compression.Method {
	case clickhouse.CompressionNone:
		c.Compression = ch.CompressionDisabled
	case clickhouse.CompressionZSTD:
		c.Compression = ch.CompressionZSTD
	default:
		c.Compression = ch.CompressionLZ4
	}
	return c
}
