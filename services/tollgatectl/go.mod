module github.com/tollgate-dev/tollgate/services/tollgatectl

go 1.26.0

require (
	github.com/google/uuid v1.6.0
	github.com/tollgate-dev/tollgate/pkg v0.0.0
)

replace github.com/tollgate-dev/tollgate/pkg => ../../pkg
