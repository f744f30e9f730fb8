package proxy

import (
	"bytes"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
)

const modelsPath = "/v1/models"

// models lists what the server has. It costs nothing, but is for those who may ask for something.
func (s *Server) models(x *exchange) error {
	return s.listed(x, func(_ client.Decision, text []byte) ([]byte, error) { return text, nil })
}

// model gives one of the list. The server is asked for the list because many servers have no path for one of it.
func (s *Server) model(x *exchange) error {
	id := x.r.PathValue("id")
	return s.listed(x, func(d client.Decision, text []byte) ([]byte, error) {
		one, err := modelIn(text, id)
		switch {
		case err != nil:
			return nil, upstreamFailed(http.StatusBadGateway, "upstream_status", "The inference server's list of models can't be read.", err)
		case one == nil:
			return nil, &apiError{told: dialect.Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "model_not_found", Param: "model",
				Message: "This model does not exist."}, outcome: outcomeInvalid, limits: &d}
		}
		return one, nil
	})
}

// listed asks the server for its models, and answers with what pick takes of a good answer.
func (s *Server) listed(x *exchange, pick func(d client.Decision, text []byte) ([]byte, error)) error {
	defer x.answer.free()
	if err := x.answer.held.grow(firstAnswer); err != nil {
		return err
	}
	d, err := s.look(x.r.Context(), x)
	if err != nil {
		return err
	}
	s.limits(x.w.Header(), d)
	resp, err := s.send(x.r.Context(), x, modelsPath, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := s.readAnswer(x.r.Context(), x, resp)
	if err != nil {
		return err
	}
	if resp.StatusCode < http.StatusBadRequest {
		if text, err = pick(d, text); err != nil {
			return err
		}
	}
	return s.whole(x, resp, bytes.NewReader(text), len(text))
}

// modelIn finds the entry of a model in a list of OpenAI's shape, as it stands there; nil if there is none. What of the list has another shape is no
// entry. Error: the list is no JSON object.
func modelIn(list []byte, id string) (found []byte, err error) {
	err = body.Members(list, func(name string, kind jsontext.Kind, at body.Span) error {
		if name != "data" || kind != '[' {
			return nil
		}
		dec, done := body.Decoder(at.Of(list))
		defer done()
		_, err := dec.ReadToken()
		for err == nil && found == nil && dec.PeekKind() != ']' {
			var entry jsontext.Value
			if entry, err = dec.ReadValue(); err == nil && entry.Kind() == '{' && isModel(entry, id) {
				found = bytes.Clone(entry) // it is good until the next read
			}
		}
		return err
	})
	return found, err
}

func isModel(entry []byte, id string) (is bool) {
	_ = body.Members(entry, func(name string, kind jsontext.Kind, at body.Span) error { // it was read as JSON before
		if name == "id" && kind == '"' {
			text, err := jsontext.AppendUnquote(nil, at.Of(entry))
			is = err == nil && string(text) == id
		}
		return nil
	})
	return is
}
