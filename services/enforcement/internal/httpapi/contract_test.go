package httpapi

import (
	"bytes"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/tollgate-dev/tollgate/schemas"
)

// contract is schemas/openapi/enforcement.yaml.
var contract = sync.OnceValues(func() (validator.Validator, error) {
	data, err := fs.ReadFile(schemas.FS, "openapi/enforcement.yaml")
	if err != nil {
		return nil, err
	}
	doc, err := libopenapi.NewDocument(data)
	if err != nil {
		return nil, err
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return v, nil
})

// call serves one request and holds request and answer against the contract.
type call struct {
	method, path, body string
	token              string // "" is the right one, "-" none
	header             http.Header
	beyond             bool // the contract can't say what is wrong with this request
	unlisted           bool // the path or method is not in the contract
}

const (
	token      = "service-token"
	adminToken = "admin-token"
)

func (c call) request(t *testing.T) *http.Request {
	t.Helper()
	r := httptest.NewRequest(c.method, "http://localhost:8081"+c.path, strings.NewReader(c.body)).WithContext(t.Context())
	for k, v := range c.header {
		r.Header[k] = v
	}
	if c.body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	switch c.token {
	case "":
		r.Header.Set("Authorization", "Bearer "+token)
	case "-":
	default:
		r.Header.Set("Authorization", c.token)
	}
	return r
}

func (c call) do(t *testing.T, h http.Handler) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, c.request(t))
	resp := w.Result()
	body := w.Body.Bytes()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s %s: no X-Request-Id", c.method, c.path)
	}
	if c.unlisted {
		return resp
	}
	v, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	if ok, errs := v.ValidateHttpResponse(c.request(t), resp); !ok {
		t.Errorf("%s %s: the answer %d breaks the contract: %v\n%s", c.method, c.path, resp.StatusCode, errs, body)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if c.beyond || resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		return resp
	}
	ok, errs := v.ValidateHttpRequest(c.request(t))
	if refused := resp.StatusCode >= 400 && resp.StatusCode < 500; ok == refused {
		t.Errorf("%s %s %s: answered %d, but by the contract the request is valid=%v %v", c.method, c.path, c.body, resp.StatusCode, ok, errs)
	}
	return resp
}
