package schemas_test

import (
	"os"
	"strings"
	"testing"
)

func TestEveryOpenAPIDocumentIsSound(t *testing.T) {
	files := glob(t, "openapi/*.yaml")
	if len(files) == 0 {
		t.Fatal("no document in schemas/openapi")
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			for _, fault := range openAPIFaults(read(t, file)) {
				t.Error(fault)
			}
		})
	}
}

// The check itself: a sound document passes, and each fault put into it is found.
func TestOpenAPICheckFindsEachFault(t *testing.T) {
	data, err := os.ReadFile("testdata/sound.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sound := string(data)
	if faults := openAPIFaults(data); len(faults) != 0 {
		t.Fatalf("faults in a sound document: %q", faults)
	}
	cases := []struct{ name, old, new, want string }{
		{"older version", "openapi: 3.1.0", "openapi: 3.0.3", "not OpenAPI 3.1"},
		{"not a document", sound, "- 1\n", "cannot construct"},
		{"no operationId", "      operationId: getThing\n", "", "no operationId"},
		{"operationId twice", "operationId: putThing", "operationId: getThing", "is used twice"},
		{"no summary", "      summary: Read a thing\n", "", "no summary"},
		{"no error response", "        '404': { $ref: '#/components/responses/Problem' }\n", "", "no error response"},
		{"error in plain JSON", "application/problem+json", "application/json", "not application/problem+json"},
		{"error without content", "        '400': { $ref: '#/components/responses/Problem' }\n", "        '400': { description: bad }\n", "not application/problem+json"},
		{"error of another type than the document says", "openapi: 3.1.0", "x-error-media-type: application/json\nopenapi: 3.1.0", "is not application/json alone"},
		{"invalid document", "  title: Sound\n", "", "title"},
		{"dangling reference", "#/components/responses/Problem", "#/components/responses/Gone", "Gone"},
		{"request example", "example: { size: 7 }", "example: { size: seven }", "request example"},
		{"request example with unknown field", "example: { size: 7 }", "example: { size: 7, colour: red }", "request example"},
		{"named response example", "value: { size: 3 }", "value: { size: -3 }", "response 200 example small"},
		{"parameter example", "example: thing-1", "example: 1", "parameter id example"},
		{"schema example", "- { size: 1 }", "- { size: 1.5 }", "schema Thing example"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			broken := strings.ReplaceAll(sound, c.old, c.new)
			if broken == sound {
				t.Fatalf("%q is not in testdata/sound.yaml", c.old)
			}
			faults := strings.Join(openAPIFaults([]byte(broken)), "\n")
			if !strings.Contains(faults, c.want) {
				t.Errorf("want a fault that says %q, got:\n%s", c.want, faults)
			}
		})
	}
}
