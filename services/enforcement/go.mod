module github.com/tollgate-dev/tollgate/services/enforcement

go 1.26
