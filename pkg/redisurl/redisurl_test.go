package redisurl

import (
	"slices"
	"testing"
)

func TestURLNamesOneServerOrAClusterWithItsSecrets(t *testing.T) {
	one, err := Options("redis://u:p@a:1/3")
	if err != nil || one.IsClusterMode || !slices.Equal(one.Addrs, []string{"a:1"}) || one.Username != "u" || one.Password != "p" || one.DB != 3 {
		t.Errorf("%+v, %v", one, err)
	}
	many, err := Options("rediss://u:p@a:1?addr=b:2&addr=c:3")
	if err != nil || !many.IsClusterMode || !slices.Equal(many.Addrs, []string{"a:1", "b:2", "c:3"}) || many.Password != "p" || many.TLSConfig == nil {
		t.Errorf("%+v, %v", many, err)
	}
	for _, url := range []string{"", "http://a:1", "redis://a:1/x", "redis://a:x:1?addr=b"} {
		if o, err := Options(url); err == nil {
			t.Errorf("%q gives %+v", url, o)
		}
	}
}
