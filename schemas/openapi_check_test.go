package schemas_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	yaml "github.com/pb33f/go-yaml"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/schema_validation"
	"github.com/pb33f/libopenapi/datamodel"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/pb33f/libopenapi/orderedmap"
)

const problemJSON = "application/problem+json"

// errorTypeExtension names, in a document whose errors have a shape that others have fixed, their media type.
const errorTypeExtension = "x-error-media-type"

// plainPaths are read by machines that want no problem document: they may do without a documented error.
var plainPaths = []string{"/healthz", "/readyz", "/metrics"}

// openAPIFaults says everything that is wrong with an OpenAPI 3.1 document by the rules of schemas/README.md.
func openAPIFaults(data []byte) []string {
	// The library logs each fault besides returning it.
	doc, err := libopenapi.NewDocumentWithConfiguration(data, &datamodel.DocumentConfiguration{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return []string{err.Error()}
	}
	if !strings.HasPrefix(doc.GetVersion(), "3.1.") {
		return []string{fmt.Sprintf("version %q is not OpenAPI 3.1", doc.GetVersion())}
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		return []string{err.Error()}
	}
	c := &openAPICheck{schemas: schema_validation.NewSchemaValidator(), operations: make(map[string]string), errorType: problemJSON}
	if all := model.Model.Extensions; all != nil && all.GetOrZero(errorTypeExtension) != nil {
		c.errorType = all.GetOrZero(errorTypeExtension).Value
	}
	c.document(doc)
	c.paths(&model.Model)
	c.components(&model.Model)
	return c.faults
}

type openAPICheck struct {
	schemas    schema_validation.SchemaValidator
	operations map[string]string // operationId: where it is used
	errorType  string            // media type of every error
	faults     []string
}

func (c *openAPICheck) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// document checks the file against the OpenAPI 3.1 specification's own schema.
func (c *openAPICheck) document(doc libopenapi.Document) {
	v, errs := validator.NewValidator(doc)
	for _, err := range errs {
		c.fault("%v", err)
	}
	if v == nil {
		return
	}
	_, faults := v.ValidateDocument()
	for _, f := range faults {
		c.fault("%s: %s", f.Message, f.Reason)
		for _, s := range f.SchemaValidationErrors {
			c.fault("line %d: %s", s.Line, s.Reason)
		}
	}
}

func (c *openAPICheck) paths(doc *v3.Document) {
	if doc.Paths == nil || orderedmap.Len(doc.Paths.PathItems) == 0 {
		c.fault("no paths")
		return
	}
	for path, item := range doc.Paths.PathItems.FromOldest() {
		c.parameters(path, item.Parameters)
		for method, op := range item.GetOperations().FromOldest() {
			c.operation(path, strings.ToUpper(method)+" "+path, op)
		}
	}
}

func (c *openAPICheck) operation(path, at string, op *v3.Operation) {
	if op.OperationId == "" {
		c.fault("%s: no operationId", at)
	} else if other := c.operations[op.OperationId]; other != "" {
		c.fault("%s: operationId %s is used twice, also by %s", at, op.OperationId, other)
	}
	c.operations[op.OperationId] = at
	if op.Summary == "" {
		c.fault("%s: no summary", at)
	}
	c.parameters(at, op.Parameters)
	if op.RequestBody != nil {
		c.content(at+": request", op.RequestBody.Content)
	}
	c.responses(path, at, op.Responses)
}

func (c *openAPICheck) responses(path, at string, responses *v3.Responses) {
	if responses == nil {
		c.fault("%s: no responses", at)
		return
	}
	all := maps.Collect(responses.Codes.FromOldest())
	if responses.Default != nil {
		all["default"] = responses.Default
	}
	errors := 0
	for _, code := range slices.Sorted(maps.Keys(all)) {
		response := all[code]
		c.content(at+": response "+code, response.Content)
		if !strings.HasPrefix(code, "4") && !strings.HasPrefix(code, "5") && code != "default" {
			continue
		}
		errors++
		if slices.Contains(plainPaths, path) {
			continue
		}
		if orderedmap.Len(response.Content) != 1 || response.Content.GetOrZero(c.errorType) == nil {
			c.fault("%s: response %s is not %s alone", at, code, c.errorType)
		}
	}
	if errors == 0 && !slices.Contains(plainPaths, path) {
		c.fault("%s: no error response", at)
	}
}

func (c *openAPICheck) parameters(at string, parameters []*v3.Parameter) {
	for _, p := range parameters {
		where := at + ": parameter " + p.Name
		c.example(where+" example", p.Schema, p.Example)
		c.examples(where, p.Schema, p.Examples)
		c.content(where, p.Content)
	}
}

func (c *openAPICheck) content(at string, content *orderedmap.Map[string, *v3.MediaType]) {
	for _, media := range content.FromOldest() {
		c.example(at+" example", media.Schema, media.Example)
		c.examples(at, media.Schema, media.Examples)
	}
}

func (c *openAPICheck) examples(at string, schema *base.SchemaProxy, examples *orderedmap.Map[string, *base.Example]) {
	for name, example := range examples.FromOldest() {
		c.example(at+" example "+name, schema, example.Value)
	}
}

func (c *openAPICheck) components(doc *v3.Document) {
	if doc.Components == nil {
		return
	}
	for name, proxy := range doc.Components.Schemas.FromOldest() {
		schema := proxy.Schema()
		if schema == nil {
			c.fault("schema %s: %v", name, proxy.GetBuildError())
			continue
		}
		c.schemaExamples("schema "+name, proxy, schema)
		for property, p := range schema.Properties.FromOldest() {
			if s := p.Schema(); s != nil && !p.IsReference() {
				c.schemaExamples("schema "+name+"."+property, p, s)
			}
		}
	}
}

func (c *openAPICheck) schemaExamples(at string, proxy *base.SchemaProxy, schema *base.Schema) {
	c.example(at+" example", proxy, schema.Example)
	for _, example := range schema.Examples {
		c.example(at+" example", proxy, example)
	}
}

// example checks one example against its schema; an absent one is nothing to check.
func (c *openAPICheck) example(at string, proxy *base.SchemaProxy, node *yaml.Node) {
	if node == nil {
		return
	}
	if proxy == nil || proxy.Schema() == nil {
		c.fault("%s: has no schema", at)
		return
	}
	var value any
	if err := node.Decode(&value); err != nil {
		c.fault("%s: %v", at, err)
		return
	}
	ok, faults := c.schemas.ValidateSchemaObjectWithVersion(proxy.Schema(), value, 3.1)
	if ok {
		return
	}
	for _, f := range faults {
		c.fault("%s: %s: %s", at, f.Message, f.Reason)
		for _, s := range f.SchemaValidationErrors {
			c.fault("%s: %s", at, s.Reason)
		}
	}
}
