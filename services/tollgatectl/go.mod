module github.com/tollgate-dev/tollgate/services/tollgatectl

go 1.26
