module github.com/tollgate-dev/tollgate/migrations

go 1.26
