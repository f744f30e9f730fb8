module github.com/tollgate-dev/tollgate/services/standalone

go 1.26

replace github.com/tollgate-dev/tollgate/migrations => ../../migrations

replace github.com/tollgate-dev/tollgate/pkg => ../../pkg

replace github.com/tollgate-dev/tollgate/schemas => ../../schemas

replace github.com/tollgate-dev/tollgate/services/enforcement => ../../services/enforcement

replace github.com/tollgate-dev/tollgate/services/quota => ../../services/quota

replace github.com/tollgate-dev/tollgate/services/consumer => ../../services/consumer

replace github.com/tollgate-dev/tollgate/services/tollgatectl => ../../services/tollgatectl
