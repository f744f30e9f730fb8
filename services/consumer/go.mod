module github.com/tollgate-dev/tollgate/services/consumer

go 1.26
