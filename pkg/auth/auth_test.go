package auth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOnlyTheExactTokenIsKnown(t *testing.T) {
	ts := Tokens{NewGrant("svc", Service, "s3cret"), NewGrant("root", Admin, "adm1n")}
	if g, ok := ts.Find("adm1n"); !ok || g.Name != "root" || g.Role != Admin {
		t.Errorf("got %+v, %v", g, ok)
	}
	for _, wrong := range []string{"", "s3cre", "s3cret ", "S3CRET", "x"} {
		if g, ok := ts.Find(wrong); ok {
			t.Errorf("%q was taken for %s", wrong, g.Name)
		}
	}
}

func TestAnEmptyTokenIsNeverKnown(t *testing.T) {
	if _, ok := (Tokens{NewGrant("unset", Admin, "")}).Find(""); ok {
		t.Error("a grant made from an unset variable let an empty token in")
	}
}

func TestGrantDoesNotKeepTheToken(t *testing.T) {
	if s := fmt.Sprintf("%+v", NewGrant("svc", Service, "canary")); strings.Contains(s, "canary") {
		t.Error(s)
	}
}

func TestBearerReadsOnlyTheBearerScheme(t *testing.T) {
	for header, want := range map[string]string{"Bearer t": "t", "bearer t": "t", "Bearer  t ": "t", "Basic t": "", "t": "", "": "", "Bearer": ""} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", header)
		if got := Bearer(r); got != want {
			t.Errorf("%q gave %q, want %q", header, got, want)
		}
	}
}
