module github.com/tollgate-dev/tollgate/services/quota

go 1.26.0

require (
	github.com/labstack/echo/v4 v4.16.5
	github.com/pb33f/libopenapi-validator v0.16.3
	github.com/segmentio/kafka-go v0.4.51
	github.com/tollgate-dev/tollgate/migrations v0.0.0
	github.com/tollgate-dev/tollgate/pkg v0.0.0
	github.com/tollgate-dev/tollgate/schemas v0.0.0
)

replace (
	github.com/tollgate-dev/tollgate/migrations => ../../migrations
	github.com/tollgate-dev/tollgate/pkg => ../../pkg
	github.com/tollgate-dev/tollgate/schemas => ../../schemas
)
