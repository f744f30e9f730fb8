module github.com/tollgate-dev/tollgate/services/quota

go 1.26.0
