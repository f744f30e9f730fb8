module github.com/tollgate-dev/tollgate/services/e2e

go 1.26
