package redisurl

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// Options reads the URL of one server, or of a cluster, whose further nodes are addr parameters: redis://a:6379?addr=b:6379&addr=c:6379. Its
// error may hold the password. Commands end with their context: whoever waits has a budget.
func Options(url string) (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{ContextTimeoutEnabled: true}
	if strings.Contains(url, "addr=") {
		c, err := redis.ParseClusterURL(url)
		if err != nil {
			return nil, err
		}
		o.Addrs, o.Username, o.Password, o.TLSConfig, o.IsClusterMode = c.Addrs, c.Username, c.Password, c.TLSConfig, true
		return o, nil
	}
	c, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.Addrs, o.Username, o.Password, o.TLSConfig, o.DB = []string{c.Addr}, c.Username, c.Password, c.TLSConfig, c.DB
	return o, nil
}
