// Package redisurl reads TOLLGATE_REDIS_URL the same way in every service.
package redisurl
