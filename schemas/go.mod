module github.com/tollgate-dev/tollgate/schemas

go 1.26
