module github.com/tollgate-dev/tollgate/services/tollgatectl

go 1.26

replace github.com/tollgate-dev/tollgate/migrations => ../../migrations

replace github.com/tollgate-dev/tollgate/pkg => ../../pkg

replace github.com/tollgate-dev/tollgate/schemas => ../../schemas
