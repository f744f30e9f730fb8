module github.com/tollgate-dev/tollgate/services/enforcement

go 1.26.0

replace (
	github.com/tollgate-dev/tollgate/migrations => ../../migrations
	github.com/tollgate-dev/tollgate/pkg => ../../pkg
	github.com/tollgate-dev/tollgate/schemas => ../../schemas
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/google/uuid v1.6.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/tollgate-dev/tollgate/pkg v0.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
