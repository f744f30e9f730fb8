module github.com/tollgate-dev/tollgate/services/standalone

go 1.26
