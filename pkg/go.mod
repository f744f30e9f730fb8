module github.com/tollgate-dev/tollgate/pkg

go 1.26
