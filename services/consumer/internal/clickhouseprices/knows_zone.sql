-- Whether this server's zone database has a zone. Parameter: its IANA name. An unknown one would fail every query of the cost views.
SELECT count() FROM system.time_zones WHERE time_zone = ?
