module github.com/tollgate-dev/tollgate/services/gateway

go 1.26.0

replace (
	github.com/tollgate-dev/tollgate/migrations => ../../migrations
	github.com/tollgate-dev/tollgate/pkg => ../../pkg
	github.com/tollgate-dev/tollgate/schemas => ../../schemas
)
