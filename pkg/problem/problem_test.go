package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestPrivateCauseIsNeverSent(t *testing.T) {
	for _, err := range []error{errors.New("password hunter2"), New(503, CodeUnavailable, "Try again.").Because(errors.New("password hunter2"))} {
		w := httptest.NewRecorder()
		p := From(fmt.Errorf("doing it: %w", err))
		Write(w, p)
		if strings.Contains(w.Body.String(), "hunter2") {
			t.Errorf("sent: %s", w.Body)
		}
		if !strings.Contains(p.Error(), "hunter2") {
			t.Errorf("the cause is lost for the log: %v", p)
		}
	}
}

func TestUnknownErrorIs500(t *testing.T) {
	if p := From(errors.New("x")); p.Status != 500 || p.Code != CodeInternal {
		t.Errorf("got %+v", p)
	}
}

func TestDocumentIsRFC9457WithEveryField(t *testing.T) {
	w := httptest.NewRecorder()
	Write(w, Invalid(FieldError{"a", "bad"}, FieldError{"b", "worse"}))
	var got Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if w.Code != 400 || w.Header().Get("Content-Type") != ContentType || got.Status != 400 || got.Title != "Bad Request" || len(got.Errors) != 2 {
		t.Errorf("%d %v %+v", w.Code, w.Header(), got)
	}
}

func TestChallengeAndRetryHeaders(t *testing.T) {
	for status, header := range map[int]string{http.StatusUnauthorized: "WWW-Authenticate", http.StatusServiceUnavailable: "Retry-After"} {
		w := httptest.NewRecorder()
		Write(w, New(status, "x", ""))
		if w.Header().Get(header) == "" {
			t.Errorf("%d has no %s", status, header)
		}
	}
}
