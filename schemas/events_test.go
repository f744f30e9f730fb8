package schemas_test

import (
	"bytes"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tollgate-dev/tollgate/schemas"
)

const schemaSuffix = ".schema.json"

func TestEveryEventSchemaAcceptsItsGoldenExamples(t *testing.T) {
	for _, event := range events(t) {
		t.Run(event, func(t *testing.T) {
			schema := compile(t, event)
			examples := glob(t, "events/examples/"+event+"/*.json")
			if len(examples) == 0 {
				t.Fatalf("events/examples/%s has no golden example", event)
			}
			for _, name := range examples {
				if err := schema.Validate(readJSON(t, name)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestEveryEventSchemaRefusesItsFaultyExamples(t *testing.T) {
	for _, event := range events(t) {
		t.Run(event, func(t *testing.T) {
			schema := compile(t, event)
			examples := glob(t, "events/examples/"+event+"/invalid/*.json")
			if len(examples) == 0 {
				t.Fatalf("events/examples/%s/invalid is empty: nothing shows that the schema refuses anything", event)
			}
			for _, name := range examples {
				if schema.Validate(readJSON(t, name)) == nil {
					t.Errorf("%s: accepted", name)
				}
			}
		})
	}
}

// Fields may be added within a version, so a reader of today must take a message of tomorrow.
func TestEveryEventSchemaAcceptsUnknownFields(t *testing.T) {
	for _, event := range events(t) {
		schema := compile(t, event)
		for _, name := range glob(t, "events/examples/"+event+"/*.json") {
			value, ok := readJSON(t, name).(map[string]any)
			if !ok {
				t.Fatalf("%s: not a JSON object", name)
			}
			value["added_in_a_later_release"] = "x"
			if err := schema.Validate(value); err != nil {
				t.Errorf("%s with an unknown field: %v", name, err)
			}
		}
	}
}

func TestEveryExampleFolderBelongsToASchema(t *testing.T) {
	known := make(map[string]bool)
	for _, event := range events(t) {
		known[event] = true
	}
	for _, dir := range glob(t, "events/examples/*") {
		if !known[path.Base(dir)] {
			t.Errorf("%s: there is no events/%s%s", dir, path.Base(dir), schemaSuffix)
		}
	}
}

// events names every event that has a schema, such as usage-record.v1.
func events(t *testing.T) []string {
	t.Helper()
	files := glob(t, "events/*"+schemaSuffix)
	if len(files) == 0 {
		t.Fatal("no event schema in schemas/events")
	}
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(path.Base(file), schemaSuffix)
	}
	return names
}

// compile checks the schema against its own meta-schema (draft 2020-12) and has formats asserted, which is not the default.
func compile(t *testing.T, event string) *jsonschema.Schema {
	t.Helper()
	name := "events/" + event + schemaSuffix
	doc := readJSON(t, name)
	object, ok := doc.(map[string]any)
	if !ok || object["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Fatalf("%s: $schema is not draft 2020-12", name)
	}
	id, ok := object["$id"].(string)
	if !ok || path.Base(id) != path.Base(name) {
		t.Fatalf("%s: $id %v does not end in the file's name", name, object["$id"])
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource(id, doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	schema, err := compiler.Compile(id)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return schema
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(schemas.FS, pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := fs.ReadFile(schemas.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readJSON(t *testing.T, name string) any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(read(t, name)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}
