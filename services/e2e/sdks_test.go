//go:build sdks

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// caller is a user with a key, who is prepared for the tests of an SDK. The JSON is what they read.
type caller struct {
	User   string `json:"user"`
	Secret string `json:"secret"`
	key    string
}

// sdkCallers makes the callers that sdks/README.md names.
func sdkCallers(t *testing.T, q *client.Quotas) map[string]caller {
	t.Helper()
	all := map[string]caller{}
	for name, l := range map[string]limits{"open": {}, "once": {rpm: 1}, "paced": {rpm: 15}, "daily": {tpd: 1500}, "single": {concurrent: 1}, "small": {}} {
		user, key := keyed(t, q, l)
		all[name] = caller{user, key.Secret, key.ID}
	}
	only := tier.Overrides{RPMLimit: new(int64(0)), TPMLimit: new(int64(0)), TPDLimit: new(int64(0)), ConcurrentLimit: new(int64(0)), MaxContext: new(int64(0)),
		AllowedModels: &[]string{"grok-2-mini"}}
	if _, err := q.PutQuota(t.Context(), all["small"].User, client.QuotaChange{Tier: tier.Enterprise, Overrides: only}); err != nil {
		t.Fatal(err)
	}
	return all
}

// The official JavaScript and Python SDKs need another base URL and another key, nothing else; and whatever they were told of each request, the ledger
// says too, once.
func TestOfficialSDKs(t *testing.T) {
	for name, r := range map[string]sdkRuntime{"javascript": javascript, "python": python} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := r.prepare(t, filepath.Join("sdks", name))
			p, _, q := services(t) // after what may be missing; one SDK may be fetched beside their start
			callers := sdkCallers(t, q)
			account := filepath.Join(t.TempDir(), "account.jsonl")
			open, err := json.Marshal(callers)
			if err != nil {
				t.Fatal(err)
			}
			cmd.Env = append(cmd.Env, "OPENAI_BASE_URL="+p.system.GatewayURL+"/v1", "TOLLGATE_ENFORCEMENT_URL="+p.system.EnforcementURL,
				"TOLLGATE_SERVICE_TOKEN="+system.ServiceToken, "TOLLGATE_SDK_CALLERS="+string(open), "TOLLGATE_SDK_ACCOUNT="+account,
				"NO_PROXY=*", "no_proxy=*") // everything is on this machine
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err = await(t, cmd)
			t.Logf("%s:\n%s", cmd, out.Bytes())
			if err != nil {
				t.Fatalf("its tests failed: %v", err)
			}
			text, err := os.ReadFile(account)
			if err != nil {
				t.Fatal(err)
			}
			requests, left := readAccount(t, text)
			p.agrees(t, callers, requests, left)
		})
	}
}
